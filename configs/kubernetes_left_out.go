//go:build nokubernetes

package configs

// withKubernetes says whether this build has sources of type kubernetes.
const withKubernetes = false
