# Each node's part of a job on SLURM, in its container where it has one. Arguments: the job's
# folder, what to say of an absent path (for printf), how several nodes meet, the seconds to wait
# for paths, how many words name them, those words (a flag of `test` before each path), and the
# program with its arguments.
job=$1 unseen=$2 meet=$3 seconds=$4 count=$5
shift 5
note() {
  end=$job/node.$SLURM_NODEID.exit
  {
    printf '%s %s\n' "$SLURMD_NODENAME" "$1" >"$end.part" && mv "$end.part" "$end"
  } 2>/dev/null
}
# Each node looks for what it needs, which none may have done before. What was made a moment ago NFS
# may show late.
look() {
  say=$1 left=$2 absent=
  shift 2
  while [ "$left" -gt 0 ]; do
    if ! test "$1" "$2"; then
      absent=$2
      ls "${2%/*}/" >/dev/null 2>&1  # NFS then asks its server
      [ -z "$say" ] || printf "$unseen" "$2" "$SLURMD_NODENAME" >&2
    fi
    shift 2
    left=$((left - 2))
  done
  [ -z "$absent" ]
}
until look "" "$count" "$@"; do
  if [ "$seconds" -le 0 ]; then look say "$count" "$@"; note 1; exit 1; fi
  seconds=$((seconds - 2))
  sleep 2
done
shift "$count"

first=${COSMOS_REASON_NODE_ADDRESSES%%;*}
program=$1
if [ "$meet" = torchrun ]; then  # Python, and -P -m torch.distributed.run
  shift 4
  set -- "$program" -P -m torch.distributed.run --node-rank="$SLURM_NODEID" \
    --rdzv-backend=static --rdzv-endpoint="$first:$COSMOS_REASON_RENDEZVOUS_PORT" "$@"
elif [ "$meet" = cosmos-rl ]; then
  shift
  where="--url $first:$COSMOS_REASON_CONTROLLER_PORT"
  if [ "$SLURM_NODEID" = 0 ]; then where="--port $COSMOS_REASON_CONTROLLER_PORT"; fi
  set -- "$program" --num-workers "$SLURM_JOB_NUM_NODES" --worker-idx "$SLURM_NODEID" \
    --node-ip-list "$COSMOS_REASON_NODE_ADDRESSES" $where \
    --rdzv-port "$COSMOS_REASON_RENDEZVOUS_PORT" "$@"
fi
# Before the time limit SLURM sends USR1 to every process: the trainer alone takes it.
trap : TERM
trap '' USR1
"$@"
code=$?
note "$code"
exit "$code"
