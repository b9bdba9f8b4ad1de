"""Tests of serializers and of keys of arguments."""
