"""`python -m commands` is `compressive` where nothing is installed, as in the working folder of a Ray job."""

from commands import main

main()
