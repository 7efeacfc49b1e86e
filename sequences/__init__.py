"""All other models on the shared core: text, speech and images. Their model, learner, streams and trainer are here."""
