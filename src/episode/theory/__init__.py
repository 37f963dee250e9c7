"""The theorem as a calculator, problems with known constants, and estimators for everybody else's.

`plan` and `complexity` are plain arithmetic; `diagnose` measures the constants of any task.
"""
