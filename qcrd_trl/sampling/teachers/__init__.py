"""Where a teacher's samples come from: one small interface, and a module for each backend."""
