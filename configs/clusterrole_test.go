package configs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/sources/kubernetes"
)

// object contains the fields of clusterrole.yaml's documents.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name, Namespace string }
	Rules      []struct {
		Groups    []string `yaml:"apiGroups"`
		Resources []string
		Verbs     []string
	}
	RoleRef struct {
		Group      string `yaml:"apiGroup"`
		Kind, Name string
	} `yaml:"roleRef"`
	Subjects []struct {
		Group                 string `yaml:"apiGroup"`
		Kind, Name, Namespace string
	}
}

// The documented rights are exactly these, granted to the service account and to the group of the
// certificates, without wildcards. test/program shows that they are needed and sufficient.
func TestClusterRole(t *testing.T) {
	text, err := os.ReadFile("kubernetes/clusterrole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	made, rights, bound := map[string]bool{}, map[string][]string{}, map[string][]string{}
	for {
		var o object
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if o.Metadata.Namespace != "" && !made["Namespace "+o.Metadata.Namespace] {
			t.Errorf("%s %s: the namespace %s is not made before", o.Kind, o.Metadata.Name, o.Metadata.Namespace)
		}
		name := strings.TrimSpace(o.Kind + " " + o.Metadata.Name)
		made[name] = true
		for _, r := range o.Rules {
			for _, resource := range r.Resources {
				for _, group := range r.Groups {
					rights[name] = append(rights[name], strings.TrimPrefix(group+"/"+resource, "/")+": "+strings.Join(r.Verbs, " "))
				}
			}
		}
		if !strings.HasSuffix(o.Kind, "Binding") {
			continue
		}
		role := o.RoleRef.Kind + " " + o.RoleRef.Name
		if !made[role] || o.RoleRef.Group != "rbac.authorization.k8s.io" || o.RoleRef.Kind+"Binding" != o.Kind {
			t.Errorf("%s is for %+v", name, o.RoleRef)
		}
		for _, s := range o.Subjects {
			bound[role] = append(bound[role], strings.Join(strings.Fields(s.Kind+" "+s.Namespace+" "+s.Name), " "))
			if s.Kind == "ServiceAccount" && !made["ServiceAccount "+s.Name] || s.Kind != "ServiceAccount" && s.Group != "rbac.authorization.k8s.io" {
				t.Errorf("%s: nobody is %+v", name, s)
			}
		}
	}
	want := map[string][]string{
		"ClusterRole ironvip-follow": {"services: list watch", "discovery.k8s.io/endpointslices: list watch", "nodes: list watch", "networking.k8s.io/servicecidrs: list watch"},
		"ClusterRole ironvip-write":  {"services/status: patch", "services: patch", "events: create"},
		"ClusterRole ironvip-gateways": {"gateway.networking.k8s.io/gatewayclasses: list watch", "gateway.networking.k8s.io/gateways: list watch", "gateway.networking.k8s.io/tcproutes: list watch",
			"gateway.networking.k8s.io/udproutes: list watch", "gateway.networking.k8s.io/referencegrants: list watch", "namespaces: list watch",
			"gateway.networking.k8s.io/gatewayclasses/status: patch", "gateway.networking.k8s.io/gateways/status: patch", "gateway.networking.k8s.io/tcproutes/status: patch", "gateway.networking.k8s.io/udproutes/status: patch"},
		"Role ironvip-elect": {"coordination.k8s.io/leases: get create update"},
	}
	if diff := cmp.Diff(want, rights); diff != "" {
		t.Error(diff)
	}
	for role := range rights {
		slices.Sort(bound[role])
		if got := strings.Join(bound[role], ", "); got != "Group ironvip, ServiceAccount ironvip ironvip" {
			t.Errorf("%s is bound to %q", role, got)
		}
	}
	if !made["Namespace "+kubernetes.DefaultLeaseNamespace] {
		t.Errorf("the namespace of the Lease, %s, is not made", kubernetes.DefaultLeaseNamespace)
	}
}
