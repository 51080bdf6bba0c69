//! The builder against a model, and its memory.
