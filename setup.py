"""The compiled modules; all else is in pyproject.toml, and how they are compiled in build_backend.py."""

from build_backend import BuildExtensions, extension
from setuptools import setup

COMPILED = ("tidegate._core.compiled", "tidegate.drivers.cuda.native.compiled")

setup(ext_modules=[extension(name) for name in COMPILED], cmdclass={"build_ext": BuildExtensions})
