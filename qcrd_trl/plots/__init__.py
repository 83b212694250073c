"""Pictures of what was sampled, selected and trained: plain values in, PNG files out. No window system is needed."""
