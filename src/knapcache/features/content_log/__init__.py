"""The content log: requests and answers with their text, redacted, if the setting `content_log` is on."""
