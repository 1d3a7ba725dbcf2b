#!/bin/bash
# The first process of the namespaces in which a test's SLURM runs: start_cluster.sh FOLDER NODE...
#
# FOLDER has slurm.conf, gres.conf, hosts, munge.key and nothing else. The machine keeps its own hosts file, because
# the mount below is visible in this namespace only. When this script ends, the kernel kills all processes of its
# process namespace: the daemons, the jobs, and whatever the jobs have left behind.
set -eu
folder=$1
shift
export SLURM_CONF="$folder/slurm.conf"

mount --bind "$folder/hosts" /etc/hosts
# An unconstrained device stands for each GPU: SLURM wants a device file to count one.
for number in 0 1 2 3 4 5 6 7; do
    mknod "$folder/gpu$number" c 1 3
done

munged --foreground --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
    --log-file="$folder/munged.log" --pid-file="$folder/munged.pid" --seed-file="$folder/munged.seed" &
slurmctld -D &
for node in "$@"; do
    slurmd -D -N "$node" &
done

# The test holds the other end of this pipe, which is closed when the test ends, also when it is killed.
cat > /dev/null
