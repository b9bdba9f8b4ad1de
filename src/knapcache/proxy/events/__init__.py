"""Events of finished requests and their consumers: history, metrics, request log, tracing, logs."""
