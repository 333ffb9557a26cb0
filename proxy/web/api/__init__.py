"""The admin API: one file a subject, with its routes and its request and response models."""
