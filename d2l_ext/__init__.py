"""Companion to "Generation and the KV Cache" in Dive into Deep Learning.

Pick a backend: `from d2l_ext import torch as d2l` or `from d2l_ext import
jax as d2l`. This file imports no framework, or the names `torch` and `jax`
here would be the real ones.
"""
