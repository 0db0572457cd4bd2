"""Where the cells of a study are carried out: in processes of this machine, on a Ray cluster, or under Slurm."""
