"""Projection of a study's answer to several GPUs."""
