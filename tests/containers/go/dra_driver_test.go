// The MPS manager of NVIDIA's DRA driver: it sets the device's mode and makes a Deployment from its own template.
// A test copies this file into cmd/gpu-kubelet-plugin of a checkout of the driver, which is otherwise unmodified.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	configapi "sigs.k8s.io/dra-driver-nvidia-gpu/api/nvidia.com/resource/v1beta1"
)

type oneDevice struct{ uuid string }

func (d oneDevice) UUIDs() []string          { return []string{d.uuid} }
func (d oneDevice) GpuUUIDs() []string       { return []string{d.uuid} }
func (d oneDevice) MigDeviceUUIDs() []string { return nil }

// TestPympsd prints the Deployment that the manager gives the API for half of the device in PYMPSD_UUID.
func TestPympsd(t *testing.T) {
	var deployment json.RawMessage
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			deployment, _ = io.ReadAll(r.Body)
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(deployment)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(
		&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	config := &Config{flags: &Flags{
		nodeName: "node", namespace: "dra", imageName: "pympsd", kubeletPluginsDirectoryPath: os.Getenv("PYMPSD_ROOT")}}
	config.clientsets.Core = client
	lib := &deviceLib{nvidiaSMIPath: os.Getenv("PYMPSD_SMI")}
	manager := NewMpsManager(config, lib, "/", os.Getenv("PYMPSD_TEMPLATE"))
	percentage, memory := 50, resource.MustParse("32Gi")
	settings := &configapi.MpsConfig{
		DefaultActiveThreadPercentage: &percentage, DefaultPinnedDeviceMemoryLimit: &memory}
	daemon := manager.NewMpsControlDaemon("claim", oneDevice{os.Getenv("PYMPSD_UUID")})
	if err := daemon.Start(context.Background(), settings); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("deployment %s\n", deployment)
}
