# The first node's part of a job on SLURM. The batch script reads this, and has set
#   job, folder    the job's folder, and the one that the work begins in
#   seen           the job's folder as the work sees it, which may be in a container
#   environment    a file of the shell with the job's variables, and container_env, their names
#   meet           how several nodes meet (torchrun, cosmos-rl); empty for one node
#   programs       the folder of this file
#   unseen         what to say of a path that a node does not have, for printf
#   modules        environment modules that the job loads
#   needed         paths that each node has to have, each behind its flag of `test`
#   patience       seconds for which a node waits for them
#   srun           flags of srun
#   requeue        yes where SLURM may begin the job anew
#   action, new, outputs    of a folder that plan --output wrote, whose run gets its id here
# and the program with its arguments as the script's own.
IFS= read -r -d '' node <"$programs/slurm_node.sh" || :  # all of it
note() { printf '%s\n' "$2" >"$job/.$1" && mv "$job/.$1" "$job/$1"; }
end() { note slurm.ended "$1"; exit "$1"; }
# With nothing in it srun would do nothing, and say 0.
[ "$node" ] || { printf "$unseen" "$programs/slurm_node.sh" "$SLURMD_NODENAME" >&2; end 1; }

if [ "$action" ] && [ -z "$SLURM_RESTART_COUNT" ]; then  # else SLURM begins it anew
  [ ! -e "$job/run.id" ] || { echo "it ran here already: see log.txt" >&2; exit 2; }
  . "$programs/begin.sh" || end 1
  mkdir -p "${outputs[@]}"
  echo "$id" >"$job/run.id"
fi
trap : TERM
[ ! -e "$job/cancel.requested" ] || end 143
cd "$folder" || { printf "$unseen" "$folder" "$SLURMD_NODENAME" >&2; end 1; }
# A batch script is no login shell: the command `module` comes with this.
[ -z "$modules" ] || . /etc/profile
container_env=
set -a
. "$environment" || end 1
set +a
if [ "$action" ]; then
  export COSMOS_REASON_JOB_ID=$(cat "$job/run.id")
elif [ -z "$requeue" ]; then
  rm -f "$environment"  # it has secrets; a job that may be begun anew needs it then
fi
# A job that is begun anew forgets how its start before went.
[ -z "$requeue" ] || rm -f "$job/slurm.ended" "$job"/node.*.exit
note slurm.started "$(date +%s) $SLURM_JOB_ID"
[ -z "$modules" ] || module load "${modules[@]}" || end 1

if [ "$meet" ]; then
  addresses=
  for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    address=$(scontrol show node "$name" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    addresses=$addresses${addresses:+;}${address:-$name}
  done
  # Ports that nobody listens on, on the first node, which this script runs on; another job there
  # begins to look elsewhere. The kernel's tables of sockets have ports in hexadecimal digits; the
  # state 0A is listening.
  port=$((20000 + SLURM_JOB_ID * 16 % 20000))
  free_port() {
    while grep -qs ":$(printf %04X "$port") [0-9A-F]*:[0-9A-F]* 0A" /proc/net/tcp /proc/net/tcp6
    do port=$((port + 1)); done
  }
  free_port
  export COSMOS_REASON_CONTROLLER_PORT=$port
  port=$((port + 1))
  free_port
  export COSMOS_REASON_RENDEZVOUS_PORT=$port
  export COSMOS_REASON_NODE_ADDRESSES=$addresses
fi
[ -z "$container_env" ] || srun+=("--container-env=$container_env")
# sbatch was told to export nothing; the step is to have what this script has. The log of one node
# is to show progress at once; lines of several stay whole.
[ "$meet" ] || srun+=(--unbuffered)
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --kill-on-bad-exit=1 --input=none "${srun[@]}" \
  sh -c "$node" launcher "$seen" "$unseen" "$meet" "$patience" \
  ${#needed[@]} "${needed[@]}" "$@"
code=$?
if [ "$requeue" ] && [ -z "$action" ]; then
  set -- "$job"/node.*.exit  # of work that was lost with its node srun says 0
  if [ "$code$#" = "0$SLURM_JOB_NUM_NODES" ] && [ -e "$1" ] && ! grep -qv ' 0$' "$@"; then
    rm -f "$environment"
  fi
fi
end "$code"
