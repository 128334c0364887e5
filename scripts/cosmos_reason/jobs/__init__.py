"""Jobs from submission to evidence. Enter at `launch.submit`.

A job is a folder with a record (`record.Job`). `launch` resolves what a spec names (`inputs`),
makes the command of its engine (`engines`) and starts it on a platform (`platforms`: this machine,
Docker; `mounts` and `docker_client` are Docker's). `progress` and `watch` tell how far it is,
`evidence` how it ended, `diagnosis` why it failed; `claims` keeps two jobs out of one output
folder.

It is larger than other packages because two platforms with supervisors that survive kills stand in
it, and because the proof of an ending differs for every action.
"""
