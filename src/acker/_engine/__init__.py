"""The engine: private modules behind the names that `acker` exports."""
