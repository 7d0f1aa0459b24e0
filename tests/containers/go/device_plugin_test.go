// The MPS manager of NVIDIA's device plugin, led as its main program does: start, set limits, stop, start again.
// A test copies this file into cmd/mps-control-daemon/mps of a checkout of the plugin, which is otherwise unmodified.

package mps

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"testing"

	spec "github.com/NVIDIA/k8s-device-plugin/api/config/v1"
	"github.com/NVIDIA/k8s-device-plugin/internal/rm"
)

// TestPympsd starts a daemon for four replicas of the device in PYMPSD_UUID. It prints the pipe directory, and waits for
// a line before it stops the daemon; all this twice.
func TestPympsd(t *testing.T) {
	uuid := os.Getenv("PYMPSD_UUID")
	memory, err := strconv.ParseUint(os.Getenv("PYMPSD_MEMORY"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	devices := rm.Devices{}
	for replica := range 4 {
		id := string(rm.NewAnnotatedID(uuid, replica))
		device := rm.Device{Index: "0", TotalMemory: memory, ComputeCapability: "9.0", Replicas: 4}
		device.ID = id
		devices[id] = &device
	}
	manager := rm.ResourceManagerMock{
		ResourceFunc: func() spec.ResourceName { return "nvidia.com/gpu" },
		DevicesFunc:  func() rm.Devices { return devices },
	}
	daemon := NewDaemon(&manager, Root(os.Getenv("PYMPSD_ROOT")))
	lines := bufio.NewReader(os.Stdin)
	for range 2 {
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		if err := daemon.AssertHealthy(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("started", daemon.PipeDir())
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := daemon.Stop(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("stopped")
	}
}
