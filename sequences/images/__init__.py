"""Images as sequences of bytes on the shared core: corpora, positions, bits a dimension, sampling."""
