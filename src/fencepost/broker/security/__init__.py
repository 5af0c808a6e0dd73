"""Security: who a client is, what it may do, and the record of what was refused.

tls.py              certificates: the TLS context of a listener, and its reload
principal_names.py  the name in a client certificate
mapping_rules.py    the principal that it stands for, by rules
sessions.py         the states of a connection with SASL, as tables; failures, re-authentication
exchanges.py        PLAIN and SCRAM without I/O
logins.py           what all sessions share: users, nonces, timers
hash_queue.py       the passwords that wait for the thread that hashes them
known_passwords.py  the last good password of each user, which needs no hash
authorizer.py       the ACLs decide, as Kafka's StandardAuthorizer does
audit.py            the audit log: what was denied, and changes of rights
file_modes.py       files with secrets that every user of the machine can read

Theory of operation: logins with SASL
-------------------------------------
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
   a thread, with a bounded queue in which addresses take turns. A good password is hashed once.

Not here: OAUTHBEARER and Kerberos, and delegation tokens, which SCRAM refuses.

Theory of operation: the authorizer
-----------------------------------
A connection knows the principal and the address of its client, and a handler asks with them before
it looks at anything else: `context.authorize` for what the client has asked for by name,
`context.may` for what a reply leaves out silently. Who asks first also answers: a handler that
looked up a resource before it asked would tell by its errors, or by its speed, that it exists.

The decision is pure (`coordinator/acl`). The rules are a part of the metadata state: the controller
is the only one to change them, and every broker follows the metadata log. CreateAcls and DeleteAcls
are answered when every live broker decides by the new rules. A request that was admitted before is
completed: a long poll asks again when it reads again, and a transaction whose producer has lost its
rights cannot be ended by it and is aborted at its timeout.

Between the brokers of a cluster there is no authorizer. Their links are pairs of sockets that the
parent has made, which no client can reach; what arrives there is either the broker's own request,
or a client's with the principal and the address that its broker has seen. The controller asks for
those.

Decisions are cached, as clients ask the same questions again and again. The cache is dropped when a
rule changes. Clients choose the names in it, so it has a bound (`MAX_CACHED`), and long names are
not kept.

A start with an authorizer is refused if nobody could ever get in: no super user, no ACL, and
allow.everyone.if.no.acl.found is false.
"""
