"""Fixtures of the tests of attention."""

from attentions import short as short
