"""Access control lists: who may do what, as Kafka's StandardAuthorizer decides it.

A rule (an ACL) allows or denies a principal an operation on the resources of a pattern. The rules
are records of the metadata log, so they are a part of the cluster's state (`coordinator.metadata`).

- `rules.py`: a rule, and the words of which it is made.
- `state.py`: all rules, indexed for the decision.
- `decide.py`: the decision, with the rule that made it.
- `filters.py`: filters, as DescribeAcls and DeleteAcls have them.
- `changes.py`: requests to add and remove rules: checked, then records.
- `words.py`: rules as people write them.
- `grants.py`: the rights that a program needs, and no others.

Theory of operation
-------------------
A question is: may this principal, from this host, perform this operation on this resource? The
first line that fits is the answer:

    1. the principal is a super user                             allowed
    2. some rule that matches denies it                          denied
    3. some rule that matches allows it                          allowed
    4. no rule at all is attached to the resource                allow.everyone.if.no.acl.found
    5. there are rules on the resource, and none of them fits    denied

A rule is attached to a resource of the same type if its pattern is the literal name, a prefix of
the name, or the literal `*`. It matches if its principal is the asker's or `User:*`, its host is
the asker's address or `*`, and its operation is the one in question or ALL. A rule that allows
READ, WRITE, DELETE or ALTER allows DESCRIBE, too, and one that allows ALTER_CONFIGS allows
DESCRIBE_CONFIGS. This holds for rules that allow, never for those that deny: who is denied READ
may still describe.

Rules:

1. The index makes a decision depend on the rules of one principal and host on the names that
   match: a lookup for the literal name, one for `*`, and one for each length that some prefix has.
2. A decision is a function of the rules and the question. Whoever caches it compares
   `AclState.version`, which grows with every change.
3. There are never two rules with the same content, so that removing a rule removes its effect.
4. One request changes the rules in one batch, or not at all.
"""
