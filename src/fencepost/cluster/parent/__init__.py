"""The parent process of a cluster: it starts the brokers, watches them, and is their controller.

serve.py             `fencepost serve --brokers N`: arguments, lock, first processes
addresses.py         the settings and addresses of each broker
process.py           builds the parent on the system's clock and disk
parent.py            the parent: processes, links, commands
supervision.py       when a broker process is started, killed, restarted; pure
broker_child.py      a broker process, as its parent starts and signals it
controller_node.py   the controller: the metadata log, and requests that only it serves
remote_followers.py  how far each broker has carried out each batch of the metadata log
control.py           the control socket, for operators and tests
"""
