//go:build !nokubernetes

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/sources/kubernetes"
	"github.com/ironvip/ironvip/vip"
)

// newKubernetes makes a source of type kubernetes, and, unless it only mirrors,
// the writer beside it.
func (a *agent) newKubernetes(s *configs.Source) error {
	config, err := kubernetesConfig(s, a.version)
	if err != nil {
		return fmt.Errorf("source %q: %w", s.Name, err)
	}
	kubeclient.LogTo(a.log)
	client, err := kubeclient.New(config)
	if err != nil {
		return fmt.Errorf("source %q: %w", s.Name, err)
	}
	backends, err := kubernetes.ParseBackendMode(s.Backends)
	if err != nil {
		return fmt.Errorf("source %q: %w", s.Name, err)
	}
	name := s.Name
	source, err := kubernetes.New(kubernetes.Options{
		Name: name, Client: client, Node: a.config.get().Node.Name, LoadBalancerClass: s.LoadBalancerClass, Classless: s.Classless,
		Namespaces: s.Namespaces, Selector: s.Selector, AdoptClusterIPs: s.AdoptClusterIPs, Backends: backends,
		Pool: s.Pool, ShrinkGuard: shrinkGuard(s), Log: a.log,
		Ranges: func(ranges []netip.Prefix) { a.allocator.SetPodCIDRs(name, ranges) },
	})
	if err != nil {
		return fmt.Errorf("source %q: %w", name, err)
	}
	a.remember(s, source)
	if s.AdoptClusterIPs {
		return nil
	}
	writer, err := kubernetes.NewWriter(kubernetes.WriterOptions{
		Source: source, Client: client, Identity: a.config.get().Node.Name,
		LeaseNamespace: s.LeaseNamespace, LeaseName: s.LeaseName, IPMode: ipModes[s.IPMode],
		Services: a.services, Allocations: a.allocations,
		Withdrawn: func(ctx context.Context, key vip.ServiceKey) error { return a.withdrawn(ctx, name, key) },
		Log:       a.log,
	})
	if err != nil {
		return fmt.Errorf("source %q: %w", name, err)
	}
	a.beside = append(a.beside, part{"writing what source " + name + " got", writer.Run})
	return nil
}

// ipModes are those of the configuration, as Kubernetes writes them.
var ipModes = map[string]corev1.LoadBalancerIPMode{configs.IPModeProxy: corev1.LoadBalancerIPModeProxy, configs.IPModeVIP: corev1.LoadBalancerIPModeVIP}

// CheckFiles looks into the files that a configuration names, and says which
// can't be used.
func CheckFiles(cfg *configs.Config) []vip.Problem {
	problems := cfg.CheckFiles()
	for i := range cfg.Sources {
		s := &cfg.Sources[i]
		if s.Type != configs.SourceKubernetes || s.InCluster {
			continue
		}
		config, err := kubernetesConfig(s, "")
		if err != nil { // systemd gives it to the agent alone
			continue
		}
		if _, problem := configs.ReadFile(config.Kubeconfig, configs.MaxConfigSize); problem != nil {
			continue // told already
		}
		if err := kubeclient.Check(config); err != nil {
			field := fmt.Sprintf("source[%d].kubeconfig", i)
			problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Place: cfg.Where(field), Field: field, Message: err.Error(),
				Hint: "docs/kubernetes.md says how to make one; try it: kubectl --kubeconfig " + config.Kubeconfig + " get services"})
		}
	}
	return problems
}

func kubernetesConfig(s *configs.Source, version string) (kubeclient.Config, error) {
	path, err := configs.ResolvePath(s.Kubeconfig)
	return kubeclient.Config{Kubeconfig: path, Context: s.Context, UserAgent: "ironvip/" + version}, err
}

// withdrawn returns once a service that a source gave no longer takes new
// connections here, or belongs to another source; an error only when the
// context ends.
func (a *agent) withdrawn(ctx context.Context, source string, key vip.ServiceKey) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.reconciler.Synced(): // before, what isn't known may well be in the dataplane
	}
	for {
		changed := a.services.Changed()
		row, _, there := a.services.Get(key)
		if there && row.Source != source {
			return nil
		}
		if !there {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
	last, _, _ := a.compiled.Get(key)
	if _, err := pipeline.WaitGone(ctx, a.compiled, a.applied, key, last); err != nil {
		return err
	}
	// Its row may have been gone before it could be read: then all that the
	// dataplane was told until now is waited for.
	for until := a.frontends.Revision(); a.reconciler.Stats().AppliedRev < until; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(withdrawnEvery):
		}
	}
	return nil
}

// withdrawnEvery is how often it is looked whether the dataplane is as far as it
// should be, which says so to nobody.
const withdrawnEvery = 100 * time.Millisecond
