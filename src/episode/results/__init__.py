"""Run folders as tables and pictures. Reads folders only; imports no training code."""
