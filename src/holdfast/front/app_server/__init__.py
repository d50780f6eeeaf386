"""The app-server's `command/exec` and `process/*`, for editors and other client applications."""
