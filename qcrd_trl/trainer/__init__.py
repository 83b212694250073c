"""[`QCRDTrainer`] and its configuration."""
