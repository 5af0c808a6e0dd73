"""Who may use the broker, and how their connections are protected.

tls.py              certificates: the TLS context of a listener, and its reload
principal_names.py  the name in a client certificate, and the principal that it stands for
sessions.py         the states of a connection with SASL, as tables; failures, re-authentication
exchanges.py        PLAIN and SCRAM without I/O
logins.py           what all sessions share: users, nonces, timers, the thread that hashes

Logins with SASL:

    a connection to a listener with SASL --begins with--> a session (`sessions.py`), which lets
    SaslHandshake and SaslAuthenticate through and nothing else, until an exchange (`exchanges.py`)
    of its mechanism has found out who the client is: `connection.principal`.

The users are records of the metadata log (`coordinator/metadata/users.py`), so every broker of a
cluster knows them and a change counts at once for the next login. What is kept of a password is
Kafka's: the salted and hashed keys of SCRAM. PLAIN checks a password against the same keys, or
against the passwords of a JAAS setting, as Kafka does.

Rules:

1. Before a login nothing of a request is read but its API key, and no frame is larger than
   `sasl.server.max.receive.size`. Requests of listeners without SASL pay one look at an attribute.
2. A stranger learns nothing from a failed login: not whether the user exists, not from the answer,
   not from its time (`sessions.py`). The salts of unknown users are as lasting as those of others.
3. No secret is printed: not in logs, traces, metrics or exceptions. Fields that hold one are hidden
   by name (`wire/schema.py`), passwords are a `Secret`, and a message of SASL is never logged.
4. Nothing slow runs in the loop. SCRAM costs a broker some HMACs; the hash that PLAIN needs runs in
   a thread, with a bounded queue.

Not here: OAUTHBEARER and Kerberos, and delegation tokens, which SCRAM refuses.
"""
