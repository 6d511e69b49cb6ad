"""A proxy in front of prefill and decode servers: ``python -m stagelink.proxy --help``.

It takes OpenAI requests, sends each to a prefill server and a decode server, and passes on what
the decode server answers. It needs the extra ``proxy``: ``pip install 'stagelink[proxy]'``.
"""
