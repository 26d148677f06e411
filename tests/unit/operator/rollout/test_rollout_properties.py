"""Invariants of every rollout, under random edits, failures, deletions and crashes: see rollout_machine.py."""

from support.operator.rollout_machine import MACHINE_SETTINGS, Rollouts

Rollouts.TestCase.settings = MACHINE_SETTINGS
TestRollouts = Rollouts.TestCase
