# For login shells: programs find the daemon of pympsd.service, which is at /run/nvidia-mps and not at the default,
# /tmp/nvidia-mps. Without this they run without MPS. Below another prefix than / link it into /etc/profile.d.
if [ -z "$CUDA_MPS_PIPE_DIRECTORY" ] && [ -S /run/nvidia-mps/control ]; then
    export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps
fi
