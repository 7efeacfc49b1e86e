"""Language modelling on the shared core: corpora, tokenization, evaluation, sampling. Model: `agent.language_model`."""
