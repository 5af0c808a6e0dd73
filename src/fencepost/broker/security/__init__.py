"""Who may use the broker, and how their connections are protected.

tls.py              certificates: the TLS context of a listener, and its reload
principal_names.py  the name in a client certificate, and the principal that it stands for
"""
