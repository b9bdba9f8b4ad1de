"""The lab: generate or read traces, replay policies over them, compare them with bounds."""
