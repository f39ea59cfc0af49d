package kubetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/wait"
)

// binding is a RoleBinding or a ClusterRoleBinding.
type binding struct {
	Kind     string
	Metadata struct{ Namespace string }
	RoleRef  struct{ Kind, Name string }
	Subjects []struct{ Kind, Namespace, Name string }
}

// awaitRights waits until the permissions of a binding are in effect. The authorizer learns of them
// from its own watch, and denies until then.
func (c *Cluster) awaitRights(t testing.TB, object []byte) error {
	var b binding
	if err := json.Unmarshal(object, &b); err != nil {
		return err
	}
	if b.Kind != "RoleBinding" && b.Kind != "ClusterRoleBinding" {
		return nil
	}
	path, namespace := "/apis/rbac.authorization.k8s.io/v1/clusterroles/"+b.RoleRef.Name, ""
	if b.Kind == "RoleBinding" {
		if namespace = b.Metadata.Namespace; namespace == "" {
			namespace = "default"
		}
		if b.RoleRef.Kind == "Role" {
			path = "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/roles/" + b.RoleRef.Name
		}
	}
	var role struct {
		Rules []struct{ APIGroups, Resources, Verbs []string }
	}
	if err := c.Do(t.Context(), http.MethodGet, path, "", nil, &role); Code(err) == http.StatusNotFound {
		return nil // it grants none yet
	} else if err != nil {
		return err
	}
	for _, rule := range role.Rules {
		if len(rule.APIGroups) == 0 || len(rule.Resources) == 0 || len(rule.Verbs) == 0 {
			continue
		}
		resource, sub, _ := strings.Cut(rule.Resources[0], "/")
		for _, s := range b.Subjects {
			spec := map[string]any{"resourceAttributes": map[string]any{"namespace": namespace, "group": rule.APIGroups[0],
				"resource": resource, "subresource": sub, "verb": rule.Verbs[0]}}
			switch s.Kind {
			case "Group":
				spec["user"], spec["groups"] = "somebody", []string{s.Name}
			case "ServiceAccount":
				spec["user"] = "system:serviceaccount:" + s.Namespace + ":" + s.Name
			default:
				spec["user"] = s.Name
			}
			if err := c.awaitAllowed(t, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitAllowed repeats a SubjectAccessReview until the authorizer allows it.
func (c *Cluster) awaitAllowed(t testing.TB, spec map[string]any) error {
	question, err := json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
	if err != nil {
		return err
	}
	var failed error
	err = wait.OrError(t, maxWait, "a permission is in effect", func() error {
		var answer struct{ Status struct{ Allowed bool } }
		failed = c.Do(t.Context(), http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", question, &answer)
		if failed == nil && !answer.Status.Allowed {
			return fmt.Errorf("not allowed: %s", question)
		}
		return nil
	})
	return cmp.Or(failed, err)
}
