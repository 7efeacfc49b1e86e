"""Language modeling on the shared core: corpora, tokenization, evaluation, sampling. Model: `sequences.model`."""
