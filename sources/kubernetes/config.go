package kubernetes

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/kubernetes/statuswriter"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Type is the type of a Kubernetes source in configuration and status, and its default name.
const Type = "kubernetes"

// The types of a Service's backends.
const (
	// BackendsEndpoints uses the addresses in the Service's EndpointSlices. This host needs a route
	// to the pods.
	BackendsEndpoints = "endpoints"
	// BackendsNodePorts uses the nodes' addresses with the Service's node ports.
	BackendsNodePorts = "node-ports"
)

// Defaults of Config.
const (
	DefaultLoadBalancerClass = "ironvip.io/vip"
	DefaultLeaseNamespace    = "ironvip" // configs/kubernetes/clusterrole.yaml creates it
	DefaultLeaseName         = "ironvip"
)

// Config is a [[source]] of type kubernetes.
type Config struct {
	// Kubeconfig is an absolute path or a credential; "" with InCluster.
	Kubeconfig string `toml:"kubeconfig"`
	Context    string `toml:"context" values:"name..253"` // the kubeconfig's context to use; "": its current one
	InCluster  bool   `toml:"in_cluster"`                 // the agent runs in a pod and uses the pod's service account
	// LoadBalancerClass is spec.loadBalancerClass of our Services of type LoadBalancer; "":
	// DefaultLoadBalancerClass. Classless adds the Services without a class.
	LoadBalancerClass string `toml:"load_balancer_class"`
	Classless         bool   `toml:"classless"`
	// Namespaces limits the source to Services in these namespaces. Empty means all, which needs
	// permissions in all. Selector limits the source to Services with matching labels, in kubectl's
	// syntax; "": all.
	Namespaces []string `toml:"namespaces"`
	Selector   string   `toml:"selector"`
	// NamespacePrefix begins the names of the Services' namespaces in ironvip, so that Services of
	// different clusters have different names. It maps no two Services to one name.
	NamespacePrefix string `toml:"namespace_prefix"`
	// AdoptClusterIPs mirrors the cluster IPs and node ports of all Services as Kubernetes assigned
	// them, like kube-proxy, instead of serving load balancers. Nothing is written to the cluster.
	AdoptClusterIPs bool `toml:"adopt_cluster_ips"`
	// GatewayAPI also serves the Gateways of GatewayClasses with our controller, gateway.Controller.
	GatewayAPI bool   `toml:"gateway_api"`
	Backends   string `toml:"backends" values:"|endpoints|node-ports"` // "": BackendsEndpoints
	// IPMode is the value of status.loadBalancer.ingress[].ipMode. With "proxy" pods also reach the
	// VIP through ironvip. With "vip" their traffic stays on their node.
	IPMode string `toml:"ip_mode" values:"|proxy|vip"`
	// LeaseNamespace and LeaseName identify the Lease that elects the one writing host. Sources of
	// one cluster need different Leases unless they replace each other.
	LeaseNamespace string `toml:"lease_namespace"`
	LeaseName      string `toml:"lease_name"`
	Pool           string `toml:"pool"` // default for Services without the annotation; "": the first pool with auto_assign
	// ShrinkGuard is how long a shrink guard holds back a large removal; 0: no guard.
	ShrinkGuard spec.Duration `toml:"shrink_guard" values:"0s..24h"`
}

// ipModes maps the values of ip_mode to those of Kubernetes.
var ipModes = map[string]corev1.LoadBalancerIPMode{"proxy": corev1.LoadBalancerIPModeProxy, "vip": corev1.LoadBalancerIPModeVIP}

// NewConfig returns the default settings.
func NewConfig() *Config { return &Config{ShrinkGuard: spec.Duration(sources.DefaultShrinkGuard)} }

// Check implements sources.Config.
func (c *Config) Check(b *sources.Block) {
	switch {
	case c.InCluster && c.Kubeconfig != "":
		b.Bad("kubeconfig", "keep one of the two", "in_cluster is set at %s: the agent's pod names the server", b.Place("in_cluster"))
	case !c.InCluster && c.Kubeconfig == "":
		b.Bad("kubeconfig", `add kubeconfig = "/etc/ironvip/kubeconfig", or in_cluster = true where the agent runs in a pod`, "a kubernetes source needs a kubeconfig")
	}
	b.File("kubeconfig", &c.Kubeconfig)
	if c.InCluster && c.Context != "" {
		b.Bad("context", "remove it", "is a context of a kubeconfig, and in_cluster uses none")
	}
	b.List("namespaces", c.Namespaces, b.Label)
	if _, err := labels.Parse(c.Selector); err != nil {
		b.Bad("selector", `write it as for kubectl's -l: "app=web,tier in (front, edge),!internal"`, "%s is not a label selector: %s", strict.Quote(c.Selector), err)
	}
	if c.NamespacePrefix != "" && vip.CheckLabel(c.NamespacePrefix+"0") != nil {
		b.Bad("namespace_prefix", `write it like "east-"`, "%s begins no namespace: it has up to 62 of a-z, 0-9 and -, and no - at its beginning", strict.Quote(c.NamespacePrefix))
	}
	b.CheckPool(c.Pool)
	c.Backends = cmp.Or(c.Backends, BackendsEndpoints)
	if c.AdoptClusterIPs {
		c.checkAdopting(b)
		return
	}
	if c.GatewayAPI {
		c.checkGateways(b)
	}
	c.LoadBalancerClass = cmp.Or(c.LoadBalancerClass, DefaultLoadBalancerClass)
	if len(validation.IsQualifiedName(c.LoadBalancerClass)) > 0 {
		b.Bad("load_balancer_class", fmt.Sprintf("use %q, or another name in a domain of yours", DefaultLoadBalancerClass),
			"%s is not a load balancer class: a name, or a DNS name, / and a name", strict.Quote(c.LoadBalancerClass))
	}
	c.IPMode = cmp.Or(c.IPMode, "proxy")
	c.LeaseNamespace, c.LeaseName = cmp.Or(c.LeaseNamespace, DefaultLeaseNamespace), cmp.Or(c.LeaseName, DefaultLeaseName)
	b.Label("lease_namespace", c.LeaseNamespace)
	if len(validation.IsDNS1123Subdomain(c.LeaseName)) > 0 {
		b.Bad("lease_name", fmt.Sprintf("use %q", DefaultLeaseName), "%s is not a name for a Lease: up to 253 of a-z, 0-9, inner - and .", strict.Quote(c.LeaseName))
	}
	// With one Lease, each of two sources would consider the other's election its own.
	lease := c.LeaseNamespace + "/" + c.LeaseName
	if by, taken := b.Claim(fmt.Sprint("kubernetes lease ", lease, c.InCluster, c.Kubeconfig, " ", c.Context)); taken {
		b.Bad("lease_name", "give each source of one cluster a lease_name of its own", "%q is the Lease of the source at %s, too", lease, by)
	}
}

// checkGateways refuses what can't be combined with gateway_api.
func (c *Config) checkGateways(b *sources.Block) {
	if c.Selector != "" {
		b.Bad("gateway_api", "remove one of the two", "backends of Gateways may be any Services, and selector is set at %s", b.Place("selector"))
	}
	if c.Backends == BackendsNodePorts {
		b.Bad("gateway_api", "remove one of the two", "backends of Gateways need not have node ports, and backends is set at %s", b.Place("backends"))
	}
	// All Gateways of the class are those of one source.
	if by, taken := b.Claim(fmt.Sprint("kubernetes gateways ", c.InCluster, c.Kubeconfig, " ", c.Context)); taken {
		b.Bad("gateway_api", "set it for one source of a cluster", "the source at %s serves the Gateways of this cluster", by)
	}
}

// checkAdopting refuses the keys that have no effect with adopted cluster IPs.
func (c *Config) checkAdopting(b *sources.Block) {
	for _, key := range []struct {
		name string
		set  bool
		why  string
	}{
		{"load_balancer_class", c.LoadBalancerClass != "", "is for Services of type LoadBalancer"},
		{"classless", c.Classless, "is for Services of type LoadBalancer"},
		{"gateway_api", c.GatewayAPI, "Gateways have VIPs that ironvip assigns"},
		{"backends", c.Backends == BackendsNodePorts, "Services with a ClusterIP need not have node ports"},
		{"ip_mode", c.IPMode != "", "is for what is written into the cluster"},
		{"lease_namespace", c.LeaseNamespace != "", "is for what is written into the cluster"},
		{"lease_name", c.LeaseName != "", "is for what is written into the cluster"},
	} {
		if key.set {
			b.Bad(key.name, "remove one of the two", "%s, and adopt_cluster_ips is set at %s", key.why, b.Place("adopt_cluster_ips"))
		}
	}
}

// Files implements sources.FileNamer.
func (c *Config) Files() []tomlfile.NamedFile {
	return []tomlfile.NamedFile{{Key: "kubeconfig", Path: c.Kubeconfig, Check: func(path string) *vip.Problem {
		err := kubeclient.Check(kubeclient.Config{Kubeconfig: path, Context: c.Context})
		if err == nil {
			return nil
		}
		return &vip.Problem{Code: vip.CodeInvalid, Message: err.Error(),
			Hint: "docs/kubernetes.md says how to make one; try it: kubectl --kubeconfig " + path + " get services"}
	}}}
}

// NewSource implements sources.Config. It also starts the Writer, unless the source adopts cluster
// IPs.
func (c *Config) NewSource(d sources.Deps) (sources.Source, error) {
	path, err := tomlfile.ResolvePath(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	kubeclient.Quiet()
	client, err := kubeclient.New(kubeclient.Config{Kubeconfig: path, Context: c.Context, UserAgent: "ironvip/" + d.Version})
	if err != nil {
		return nil, err
	}
	source := New(Options{Config: *c, Name: d.Name, Client: client, Node: d.Node, Ranges: d.SetPodCIDRs})
	if !c.AdoptClusterIPs {
		options := statuswriter.Options{
			Client: client, Identity: d.Node,
			LeaseNamespace: c.LeaseNamespace, LeaseName: c.LeaseName, IPMode: ipModes[c.IPMode],
			Services: d.Services, Allocations: d.Allocations, Withdrawn: d.Withdrawn, Log: d.Log,
		}
		if _, err := source.Writer(options); err != nil {
			return nil, err
		}
		d.Background("writing the status of Services", func(ctx context.Context) error {
			writer, err := source.Writer(options)
			if err != nil {
				return err
			}
			return writer.Run(ctx)
		})
	}
	return d.Cache(source), nil
}
