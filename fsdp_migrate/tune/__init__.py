"""Layouts of FSDP2 on paper: what each communicates, holds and takes, from one recorded step, without torch."""
