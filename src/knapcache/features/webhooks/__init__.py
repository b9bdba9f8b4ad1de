"""Webhooks: messages to an address of the operator when the state of the proxy changes."""
