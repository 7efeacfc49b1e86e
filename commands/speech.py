"""`compressive speech`; see `commands.sequence`."""

from commands.sequence import speech as speech
