"""Jobs from submission to evidence. Enter at `launch.submit`.

A job is a folder with a record (`record.Job`). `launch` resolves what a spec names (`inputs`,
which `fetching` brings here), makes the command of its engine (`engines`) and starts it on a
platform (`platforms`: this machine, Docker, SLURM, Kubernetes, a folder each with all that is known
of it, what the preflight asks of it included; `containers` and `mounts` serve all with containers).
`nodes` tells how many a launch takes. `progress` and `watch` tell how far it is, `evidence` how it
ended, `diagnosis` why it failed; `in_words` describes a job, `listing` finds how all of them are,
`uploading` sends one to S3; `claims` keeps two jobs out of one output folder.

It is larger than other packages because four platforms whose jobs survive kills of ours stand in
it, and because the proof of an ending differs for every action.
"""
