"""What happened, request by request, and all who are told of it: counters, money over time, logs, traces."""
