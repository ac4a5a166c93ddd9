"""The same batches inside other people's trainers: the only files that know another framework.

Nothing is imported here: an engine is loaded by whoever asks for its package.
"""
