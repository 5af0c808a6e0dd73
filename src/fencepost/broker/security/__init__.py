"""Security: who a client is, what it may do, and the record of what was refused.

authorizer.py       the ACLs decide, as Kafka's StandardAuthorizer does
audit.py            the audit log: what was denied, and changes of rights

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
