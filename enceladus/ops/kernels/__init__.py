"""The kernels of ``enceladus.ops``, each with the host code that launches it."""
