"""Language modelling on the shared core: corpora, tokenisation, evaluation, sampling. Its model is `agent.sequence`."""
