"""Running a server as a separate process: options, authentication, logs, audit, signals."""
