package kubetest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

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
func (c *Cluster) awaitRights(ctx context.Context, object []byte) error {
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
	if err := c.Do(ctx, http.MethodGet, path, "", nil, &role); Code(err) == http.StatusNotFound {
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
			if err := c.awaitAllowed(ctx, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitAllowed repeats a SubjectAccessReview until the authorizer allows it.
func (c *Cluster) awaitAllowed(ctx context.Context, spec map[string]any) error {
	question, err := json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	var failed error
	err = wait.Poll(ctx, func() error {
		var answer struct{ Status struct{ Allowed bool } }
		failed = c.Do(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", question, &answer)
		if failed == nil && !answer.Status.Allowed {
			return fmt.Errorf("not allowed within %s: %s", maxWait, question)
		}
		return nil
	})
	return cmp.Or(failed, err)
}
