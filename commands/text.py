"""`compressive text`; see `commands.sequence`."""

from commands.sequence import text as text
